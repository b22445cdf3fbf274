"""Opened models: engines here or on a cluster, and endpoints."""
