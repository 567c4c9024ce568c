"""The limits of a fetch. Every one is a setting; the defaults are what the tests hold us to."""

from __future__ import annotations

from dataclasses import dataclass

from onceflow.core.errors import SettingsError

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How far one fetch may go, and what it may reach."""

    allow_networks: tuple[str, ...] = ()  # CIDR; exceptions to "public addresses only"
    robots: bool = True
    allow_https_to_http: bool = False
    ca_file: str | None = None  # certificates to trust instead of the machine's

    redirects_max: int = 5
    wire_bytes_max: int = 10 * MIB
    decoded_bytes_max: int = 20 * MIB
    codings_max: int = 2
    header_bytes_max: int = 64 * KIB
    header_lines_max: int = 100
    addresses_max: int = 4  # how many of a name's addresses are tried
    connections_per_host_max: int = 8

    connect_seconds: float = 10
    fetch_seconds: float = 30  # the whole of it: robots.txt, redirects and body together
    retry_after_seconds_max: float = 3600
    robots_bytes_max: int = 512 * KIB
    robots_seconds: float = 3600  # how long an answer about robots.txt is kept

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            # redirects_max = 0 means "follow none", which is a fair thing to ask for.
            low = 0 if name == "redirects_max" else 1e-9
            if isinstance(value, int | float) and not isinstance(value, bool) and value < low:
                raise SettingsError(f"{name} is {value}; it must be greater than zero")
