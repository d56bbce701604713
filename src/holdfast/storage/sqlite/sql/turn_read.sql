-- Read which turn was served last in a round.
select turn from holdfast_turn where scope = :scope
