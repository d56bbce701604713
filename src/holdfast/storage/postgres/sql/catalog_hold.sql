-- Keep everybody else from deciding by the catalog until it has been changed.
select holdfast.hold_catalog()
