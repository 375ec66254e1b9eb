"""Interfaces of the kernel and of libc, each read or called in one place.

This room imports nothing of redoxfs, and little else: short commands load it.
"""
