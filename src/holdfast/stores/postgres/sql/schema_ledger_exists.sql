-- Tell whether this database has a list of applied migrations.
select to_regclass('holdfast.migration')
