"""The life of a bucket after its rows came: up to where time is complete, closed, sealed, and what is said of it."""
