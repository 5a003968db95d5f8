"""What every client of a store raises of one request, instead of its library's exceptions."""

from enum import Enum


class FailureKind(Enum):
    """What the answer to a request says of the object."""

    # There is none under this key.
    NO_OBJECT = "no object"
    # One is there, so none was created.
    OBJECT_EXISTS = "object exists"
    # There is no bucket, and so no object either.
    NO_BUCKET = "no bucket"
    # The store does not know the condition of the PUT.
    NO_CONDITION = "no condition"
    OTHER = "other"


class RequestFailed(Exception):
    """One request failed.

    `answer`, `fix`: for a message, without anything secret. `status`: of HTTP; 0: none was received. `may_pass`: the
    same request may succeed a moment later. `may_have_worked`: it may have taken effect, or may yet. `tries`: how often
    the client sent it. `is_later_page`: it asked for a page of a list that is not the first.
    """

    def __init__(
        self,
        answer: str,
        fix: str,
        *,
        kind: FailureKind = FailureKind.OTHER,
        status: int = 0,
        may_pass: bool = False,
        may_have_worked: bool = False,
        tries: int = 1,
        is_later_page: bool = False,
    ) -> None:
        super().__init__(answer)
        self.answer = answer
        self.fix = fix
        self.kind = kind
        self.status = status
        self.may_pass = may_pass
        self.may_have_worked = may_have_worked
        self.tries = tries
        self.is_later_page = is_later_page
