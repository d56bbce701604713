-- Read which turn a subscription served last.
select turn from holdfast_turn where subscription = :subscription
