-- Give the catalog another version, unique, so that nobody goes on with an old or a rolled-back one.
update holdfast_meta set value = :version where name = 'catalog_version'
