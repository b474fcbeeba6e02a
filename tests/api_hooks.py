"""Let what schemathesis makes up be about a job that exists: a random name never is one."""

from typing import Any

import schemathesis

JOB = "described"
# What is deleted is gone, and its views with it: that happens to another job.
DOOMED = "doomed"


@schemathesis.hook
def map_path_parameters(context: Any, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    # Names of one character stay what they are: odd ones must be answered, too.
    if parameters and len(str(parameters.get("job", ""))) > 1:
        deletes = context.operation.method.upper() == "DELETE"
        return {**parameters, "job": DOOMED if deletes else JOB}
    return parameters


@schemathesis.hook
def map_body(_: Any, body: Any) -> Any:
    if isinstance(body, dict) and isinstance(body.get("job"), str) and len(body["job"]) > 1:
        return {**body, "job": JOB}
    return body


@schemathesis.hook
def before_call(_: Any, case: Any, __: Any) -> None:
    # Methods that an operation does not name are tried on it, too, and "a/b/.." is "a".
    if case.method.upper() == "DELETE" and (case.path_parameters or {}).get("job") == JOB:
        case.path_parameters["job"] = DOOMED
    # Without a number to begin after, what answers is a stream that does not end.
    if case.operation.path.endswith("/events"):
        case.query.setdefault("after", 0)
