"""Attention of single query rows over selected slots."""
