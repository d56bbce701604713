-- Tell whether one start of an exclusive worker is known, and whether a later one has superseded it.
select superseded from holdfast_incarnation where worker = :worker and incarnation = :incarnation
