-- Read the version under which lanes, routes and retired kinds stand; who writes holds it still.
select holdfast.catalog_version(false /* lock: or true */)
