-- Read the catalog's version and draw the next numbers in enqueue order; what is drawn is never given again.
select (select holdfast.catalog_version(false /* lock: or true */)),
       array(select nextval('holdfast.job_seq') from generate_series(1, %(count)s::integer))
