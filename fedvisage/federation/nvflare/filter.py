"""The policy as NVFlare's own result filter: what the executor lets pass is looked at once more before it leaves.

It is configured by the site, in `local/privacy.json`, so that no job can leave it out, and reads the policy anew from
the party's folder. It looks at the bytes themselves: a result that is no parcel, or holds a group that may not leave,
is replaced by a refusal.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from fedvisage.core.parcel import decode
from fedvisage.federation.nvflare.executor import failed
from fedvisage.federation.nvflare.wire import ANSWER, FAILED, look
from fedvisage.privacy import Policy, Refused


class PolicyFilter(Filter):
    """Lets a result pass only if the party's policy allows every group in it."""

    @abstractmethod
    def read_policy(self, site: Path) -> Policy:
        """The policy of the party whose start-up kit is in `site`."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The result, or a refusal in its place."""
        try:
            self._check(shareable, fl_ctx)
        except Exception as error:
            self.log_error(fl_ctx, f"result held back: {error}")
            return failed(error)
        return shareable

    def _check(self, shareable: Shareable, fl_ctx: FLContext) -> None:
        content = {key for key in shareable if key != "__headers__"}
        if content == {FAILED}:
            return
        if content != {ANSWER}:
            raise Refused(f"a result may hold a parcel only, not {', '.join(sorted(content)) or 'nothing'}")
        site = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_root_dir())
        self.read_policy(site).check(decode(look(shareable[ANSWER])))
