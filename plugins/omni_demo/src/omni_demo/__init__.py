"""The two demo pipelines: small trained models whose weights come with this package."""
