"""Rows of the route table for the content of jobs: output, artifacts and uploads."""

from typing import Final

from holdfast.domain import limits
from holdfast.service import bodies, call, claims, content, examples, schemas

_SHA256: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_CHUNK: Final = {"number": 1, "attempt": 1, "epoch": 1, "at_ms": 1_790_000_000_000, "text": "It is 42."}
_UPLOAD: Final = {
    "id": "5f1d7a84db00d2fce00b31a7fc73224f",
    "tenant": "default",
    "chunks": 0,
    "size": 0,
    "digest": None,
    "expires_at_ms": 1_790_086_400_000,
}
_FINISHED: Final = {**_UPLOAD, "chunks": 1, "size": 4, "digest": _SHA256}
_ARTIFACT: Final = {
    "name": "log.txt",
    "media_type": "text/plain",
    "size": 4,
    "digest": _SHA256,
    "input": False,
    "epoch": 1,
    "created_at_ms": 1_790_000_000_000,
}
_ARTIFACT_LIST: Final = schemas.shape(artifacts={"type": "array", "items": schemas.ref("Artifact")})
_BINARY: Final = {"type": "string", "format": "binary"}

CONTENT: Final = (
    call.Endpoint(
        "GET",
        "/v1/jobs/{job_id}/output",
        "get_output",
        "Read the output of a job: a page as JSON, or a stream if the client accepts text/event-stream",
        content.output,
        ("read", "produce"),
        schemas.shape(chunks={"type": "array", "items": schemas.ref("OutputChunk")}, ended=schemas.BOOLEAN),
        {"chunks": [_CHUNK], "ended": True},
        query={
            "after": schemas.integer(
                0, 10**15, 0, "Only chunks after this number; the header Last-Event-ID takes precedence."
            ),
            "limit": schemas.integer(1, limits.OUTPUT_PAGE_MAX, limits.OUTPUT_PAGE_MAX),
            "wait": schemas.number(0, schemas.WAIT_SECONDS_MAX, "Seconds to wait for a chunk or the end of the job."),
            "tenant": schemas.TENANT,
        },
        headers={"Last-Event-ID": schemas.STRING},
        streams=True,
        problems=(404, 429),
    ),
    call.Endpoint(
        "POST",
        "/v1/claims/{job_id}/output",
        "emit",
        "Append text to the output of a running job; with `part` the call can be sent again",
        claims.emit,
        ("work",),
        schemas.shape(number=schemas.INTEGER),
        {"number": 1},
        body=schemas.strict(
            ["epoch", "lease_token", "text"],
            {
                **schemas.LEASE,
                "text": {"type": "string", "minLength": 1, "maxLength": limits.OUTPUT_CHUNK_BYTES_MAX},
                "part": schemas.integer(
                    0,
                    10**15,
                    description="Its index within this attempt, from 0; a stored part is skipped.",
                ),
            },
        ),
        body_example={**examples.PROOF_EXAMPLE, "text": "It is 42.", "part": 0},
        problems=(404, 409),
    ),
    call.Endpoint(
        "GET",
        "/v1/jobs/{job_id}/artifacts",
        "list_artifacts",
        "List the artifacts of a job",
        content.artifacts,
        ("read", "produce", "work"),
        _ARTIFACT_LIST,
        {"artifacts": [_ARTIFACT]},
        query={"tenant": schemas.TENANT},
        problems=(404,),
    ),
    call.Endpoint(
        "GET",
        "/v1/jobs/{job_id}/artifacts/{name}",
        "get_artifact",
        "Download an artifact, or a range of its bytes",
        content.artifact,
        ("read", "produce", "work"),
        _BINARY,
        response_media_type=bodies.BYTES,
        headers={"Range": schemas.STRING},
        query={"tenant": schemas.TENANT},
        problems=(404, 416),
    ),
    call.Endpoint(
        "POST",
        "/v1/claims/{job_id}/artifacts",
        "attach",
        "Store artifacts of a running job",
        claims.attach,
        ("work",),
        _ARTIFACT_LIST,
        {"artifacts": [_ARTIFACT]},
        body=schemas.strict(["epoch", "lease_token", "artifacts"], {**schemas.LEASE, "artifacts": schemas.ARTIFACTS}),
        body_example={
            **examples.PROOF_EXAMPLE,
            "artifacts": [{"name": "log.txt", "media_type": "text/plain", "data": "dGVzdA=="}],
        },
        body_bytes_max=32 << 20,
        problems=(404, 409),
    ),
    call.Endpoint(
        "POST",
        "/v1/uploads",
        "begin_upload",
        "Begin an upload of up to 64 MiB, for an artifact",
        content.begin_upload,
        ("produce", "work"),
        schemas.ref("Upload"),
        _UPLOAD,
        body=schemas.strict(
            [],
            {
                "tenant": schemas.text(description="The tenant of the job that will have the artifact."),
                "expires": schemas.number(
                    1, limits.UPLOAD_MS_MAX / 1000, "Seconds until it is deleted; default: a day."
                ),
            },
        ),
        body_required=False,
        body_example={"expires": 3600},
        status=201,
    ),
    call.Endpoint(
        "GET",
        "/v1/uploads/{upload_id}",
        "get_upload",
        "Read how much of an upload is stored; its next chunk has the number `chunks`",
        content.get_upload,
        ("produce", "work"),
        schemas.ref("Upload"),
        _UPLOAD,
        query={"tenant": schemas.TENANT},
        problems=(404,),
    ),
    call.Endpoint(
        "PUT",
        "/v1/uploads/{upload_id}/content",
        "upload_content",
        "Store all bytes of an upload in one request and finish it",
        content.upload_content,
        ("produce", "work"),
        schemas.ref("Upload"),
        _FINISHED,
        body=_BINARY,
        body_example="test",
        body_media_type=bodies.BYTES,
        body_bytes_max=limits.ARTIFACT_BYTES_MAX,
        problems=(404, 409),
    ),
    call.Endpoint(
        "PUT",
        "/v1/uploads/{upload_id}/chunks/{number}",
        "upload_chunk",
        "Store one chunk of an upload; all but the last have 256 KiB",
        content.upload_chunk,
        ("produce", "work"),
        schemas.ref("Upload"),
        {**_UPLOAD, "chunks": 1, "size": 4},
        body=_BINARY,
        body_example="test",
        body_media_type=bodies.BYTES,
        body_bytes_max=limits.ARTIFACT_CHUNK_BYTES,
        query={"tenant": schemas.TENANT},
        problems=(404, 409),
    ),
    call.Endpoint(
        "POST",
        "/v1/uploads/{upload_id}/finish",
        "finish_upload",
        "Finish an upload if its bytes have this size and digest",
        content.finish_upload,
        ("produce", "work"),
        schemas.ref("Upload"),
        _FINISHED,
        body=schemas.strict([], {"size": schemas.integer(0, limits.ARTIFACT_BYTES_MAX), "digest": schemas.DIGEST}),
        body_required=False,
        body_example={"size": 4, "digest": _SHA256},
        query={"tenant": schemas.TENANT},
        problems=(404, 409),
    ),
)
