"""Stage processes that compute with torch: their settings, the fork server, tensor parallel ranks, the profiler."""
