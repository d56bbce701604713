-- Tell how often writes are forced to the disk.
pragma synchronous
