raise RuntimeError("the package was imported to find out which API level its plugin works with")
