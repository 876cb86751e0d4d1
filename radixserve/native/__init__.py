"""The native request dialect: dictionaries in, dictionaries out, no HTTP.

`/generate` and `rs.Engine` both speak it, through `NativeService`.
"""
