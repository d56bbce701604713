-- Read the catalog's version and the first of the next numbers in enqueue order; within a write transaction nobody else
-- can take them.
select (select value from holdfast_meta where name = 'catalog_version'),
       coalesce((select seq from sqlite_sequence where name = 'holdfast_job'), 0) + 1
