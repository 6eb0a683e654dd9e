"""Every error that a user can cause: one root, one class per kind of input."""


class StrataError(Exception):
    """Root of all errors that are the input's fault; commands print one line and exit 2."""


class OptionError(StrataError):
    """A command-line value or a STRATA_* variable that cannot be used."""


class ModelError(StrataError):
    """A GGUF file that is damaged, or a model that is not supported."""


class BundleError(StrataError):
    """A bundle that is damaged, or does not fit this machine."""


class DeviceError(StrataError):
    """A device that is missing, too small, or failed."""


class RequestError(StrataError):
    """One request's fault; it ends that request and touches no other slot."""
