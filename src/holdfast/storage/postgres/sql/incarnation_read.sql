-- Tell whether one start of an exclusive worker is known, and whether a later one has superseded it. The lock makes a
-- later start wait until what is claimed under this one can be seen and taken back.
select superseded from holdfast.incarnation
 where worker = %(worker)s and incarnation = %(incarnation)s
/* lock: for share */
