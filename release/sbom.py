"""Writes components as CycloneDX 1.6 in JSON, and holds the document against the schema of the standard."""

import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component as CycloneComponent, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from release.components import Component
from release.errors import ReleaseError

_VERSION = SchemaVersion.V1_6
# Names of documents, by https://www.rfc-editor.org/rfc/rfc9562#name-uuid-version-5.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://github.com/headrace/headrace/sbom")


def write_sbom(subject: Component, components: Sequence[Component], epoch_s: int) -> str:
    """Return the document: the same text for the same components. Raises ReleaseError if the schema refuses it.

    `epoch_s`: seconds since 1970, the commit's. A package whose hash is one of several is listed with all of them.
    """
    bom = Bom()
    bom.metadata.component = _component(subject, ComponentType.APPLICATION)
    bom.metadata.timestamp = datetime.fromtimestamp(epoch_s, UTC)
    libraries = [_component(component, ComponentType.LIBRARY) for component in components]
    bom.components.update(libraries)
    bom.register_dependency(bom.metadata.component, libraries)
    text = json.dumps([repr(component) for component in (subject, *components)])
    bom.serial_number = uuid.uuid5(_NAMESPACE, text)
    document: str = make_outputter(bom, OutputFormat.JSON, _VERSION).output_as_string(indent=1)
    if error := JsonStrictValidator(_VERSION).validate_str(document):
        raise ReleaseError(f"the SBOM of {subject.name} does not follow the schema of CycloneDX: {error}")
    return document


def _component(component: Component, kind: ComponentType) -> CycloneComponent:
    purl = PackageURL(
        component.kind, component.namespace or None, component.name, component.version, dict(component.qualifiers)
    )
    # A package of a lock may be any of its files: these are told apart as properties, since `hashes` are of one file.
    is_one_file = len(component.sha256s) == 1
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in component.sha256s if is_one_file]
    properties = [Property(name="headrace:path", value=component.path)] if component.path else []
    if not is_one_file:
        properties += [Property(name="headrace:allowed-sha256", value=digest) for digest in component.sha256s]
    return CycloneComponent(
        type=kind,
        name=component.name,
        version=component.version or None,
        group=component.namespace or None,
        bom_ref=f"{purl}#{component.path}" if component.path else str(purl),
        purl=purl,
        licenses=[LicenseFactory().make_from_string(component.licence)] if component.licence else None,
        hashes=hashes,
        properties=properties,
    )
