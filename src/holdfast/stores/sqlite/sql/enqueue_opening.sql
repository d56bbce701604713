-- Read the catalog's version and reserve the next numbers in enqueue order; within a write transaction nobody else can
-- take them.
with recursive slot (number) as (
    select coalesce((select seq from sqlite_sequence where name = 'holdfast_job'), 0) + 1
    union all
    select number + 1 from slot limit :count
)
select (select value from holdfast_meta where name = 'catalog_version'), number from slot
