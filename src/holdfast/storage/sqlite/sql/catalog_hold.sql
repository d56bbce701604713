-- Keep everybody else from deciding by the catalog: the only writer there can be has done so already.
select 1
