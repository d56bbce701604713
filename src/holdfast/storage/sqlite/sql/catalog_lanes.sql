-- Read every configured lane.
select lane, state, lane_order, events, backoff from holdfast_lane
