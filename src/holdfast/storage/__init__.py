"""Stores: the storage contract and the engines that implement it. SQL occurs only in this package."""
