"""Known vulnerabilities in the packages of constraints.txt: pip-audit, with a plain word on what could not be looked up.

    python scripts/audit.py                    # fails on a finding, and where no advisory service can be reached
    python scripts/audit.py --if-reachable     # says so and passes where none can be reached; a finding still fails

pip-audit itself reports "no known vulnerabilities" when it could look up nothing at all, as with an index that has packages
but no advisories. Here the number of packages that were really looked up is part of the result. PyPI's advisories are
asked first, then OSV's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVICES = ("pypi", "osv")
CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"


@dataclass(frozen=True, slots=True)
class Audit:
    """What one service said: packages looked up, packages it does not know, and `NAME VERSION: ID, fixed in ...`."""

    num_looked_up: int
    unknown: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def ask(service: str, constraints: Path, timeout_s: int, osv_url: str | None) -> Audit | str:
    """What a service says about the packages, or why it said nothing."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(constraints), "--no-deps", "--disable-pip"]
    command += ["--vulnerability-service", service, "--format", "json", "--progress-spinner", "off"]
    command += ["--timeout", str(timeout_s), *(["--osv-url", osv_url] if osv_url else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:  # it ended before its report
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]
    return read(packages)


def read(packages: list[dict[str, Any]]) -> Audit:
    """The parts of pip-audit's report that matter."""
    findings = [
        f"{package['name']} {package['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no version'}"
        for package in packages
        for found in package.get("vulns", [])
    ]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    return Audit(len(packages) - len(unknown), unknown, findings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--if-reachable", action="store_true", help="pass where no advisory service can be reached")
    parser.add_argument("--constraints", type=Path, default=CONSTRAINTS, help="the pinned packages")
    parser.add_argument("--service", choices=SERVICES, help="ask this one only")
    parser.add_argument("--osv-url", help="another address of OSV's query interface")
    parser.add_argument("--timeout-s", type=int, default=15, help="for each request")
    options = parser.parse_args()
    for service in [options.service] if options.service else SERVICES:
        audit = ask(service, options.constraints, options.timeout_s, options.osv_url)
        if isinstance(audit, str):
            print(f"audit: {service} cannot be asked: {audit}")
        elif audit.num_looked_up == 0:
            print(f"audit: {service} knows none of the {len(audit.unknown)} packages; it has no advisories here")
        else:
            print(f"audit: {audit.num_looked_up} packages looked up at {service}, {len(audit.findings)} findings")
            print("\n".join(f"  {finding}" for finding in audit.findings), end="\n" if audit.findings else "")
            if audit.unknown:
                print(f"  not looked up: {', '.join(audit.unknown)}")
            return 1 if audit.findings else 0
    print("audit: NOT DONE, no advisory service can be reached from this machine")
    return 0 if options.if_reachable else 1


if __name__ == "__main__":
    sys.exit(main())
