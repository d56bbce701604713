-- Tell whether this database has a list of applied migrations.
select 1 from sqlite_master where type = 'table' and name = 'holdfast_migration'
