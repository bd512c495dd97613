"""The name by which `verifiers` finds our environment: it looks for top-level modules. All of it is in
`parallelsearch.integrations.verifiers`."""

from parallelsearch.integrations.verifiers import SearchEnv, SearchHarness, SearchTaskset

__all__ = ["SearchEnv", "SearchHarness", "SearchTaskset"]
