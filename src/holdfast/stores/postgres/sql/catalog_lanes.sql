-- Read every configured lane.
select lane, state, lane_order, events from holdfast.lane
