"""A contract for import-linter: what a package may import of ours, and nothing else.

The built-in contracts list what is forbidden, so a new package is allowed everywhere until
somebody remembers to forbid it, and they refuse a package that does not exist yet. This one lists
what is allowed and is kept by a package that is not there.
"""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class OnlyContract(Contract):
    """Modules in ``source`` import directly, of our own, only themselves and what is ``allowed``.

    ``allowed`` names packages, with all that is in them; ``allowed_exactly`` single modules.
    """

    type_name = "only"

    source = fields.StringField()
    allowed = fields.ListField(subfield=fields.StringField())
    allowed_exactly = fields.ListField(subfield=fields.StringField(), required=False, default=[])

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        packages = (self.source, *self.allowed)
        wrong = [
            (importer, imported)
            for importer in sorted(graph.modules)
            if _inside(importer, self.source)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if not any(_inside(imported, package) for package in packages)
            and imported not in self.allowed_exactly
        ]
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong})

    def render_broken_contract(self, check: ContractCheck) -> None:
        may = ", ".join([*self.allowed, *self.allowed_exactly]) or "nothing else of ours"
        for importer, imported in check.metadata["wrong"]:
            output.print_error(f"{importer} imports {imported}; {self.source} may import {may}")


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
