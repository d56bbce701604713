-- Read every route.
select route, lane, kind, requires, placed, session from holdfast.route
