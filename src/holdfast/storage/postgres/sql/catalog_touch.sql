-- Give the catalog another version, unique, so that nobody goes on with an old or a rolled-back one.
update holdfast.meta set value = %(version)s where name = 'catalog_version'
