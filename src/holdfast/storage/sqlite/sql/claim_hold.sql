-- Wait for the same claim sent before, if it is still on its way: the only writer there can be has done so already.
select 1
