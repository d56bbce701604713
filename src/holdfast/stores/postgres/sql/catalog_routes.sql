-- Read every route.
select route, lane, kind, requires, placed from holdfast.route
