"""The events of platform, a module for each: type, version, payload, examples.

Within a version fields are only added. A change that breaks a consumer is a new type, with the suffix `.v2`.
"""
