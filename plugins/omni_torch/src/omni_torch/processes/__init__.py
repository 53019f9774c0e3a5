"""Stage processes that compute with torch: their settings, the fork server and tensor parallel ranks."""
