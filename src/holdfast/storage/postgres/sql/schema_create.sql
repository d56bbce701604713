-- Create the schema in which everything stands.
create schema holdfast
