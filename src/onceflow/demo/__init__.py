"""A small web site to try Onceflow on, offline: its articles, its server, its two workers.

`onceflow demo` plays it. Nothing else imports this package.
"""
