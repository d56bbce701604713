-- Check that the file is sound, up to the first fault.
pragma quick_check(1)
