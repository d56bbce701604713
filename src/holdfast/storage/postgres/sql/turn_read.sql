-- Read which turn was served last in a round.
select turn from holdfast.turn where scope = %(scope)s
