-- Read the version under which lanes, routes and retired kinds stand.
select value from holdfast_meta where name = 'catalog_version'
