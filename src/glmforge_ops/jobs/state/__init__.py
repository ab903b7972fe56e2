"""What has become of jobs: found in a directory, read from their files, asked of their schedulers."""
