"""What follows a seal: each hook is told of every sealed version of a bucket, at least once."""
