-- Hold the keys of the new jobs, read the catalog's version and draw the next numbers in enqueue order; what is drawn is
-- never given again.
select (select holdfast.catalog_version(false /* lock: or true */, %(keys)s::integer[])),
       array(select nextval('holdfast.job_seq') from generate_series(1, %(count)s::integer))
