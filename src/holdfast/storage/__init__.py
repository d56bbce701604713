"""The stores: every operation as a script without colour, and the engines that run them. Only here is SQL spoken."""
