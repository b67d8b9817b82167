"""Producers with the names, defaults and errors of other Python clients, over kafkabuf's own producers.

A program moves to kafkabuf by the name of the module that it imports its producer from.
"""
