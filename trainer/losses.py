"""The terms of the training objectives: embeddings, masks and plain numbers in, a scalar out."""

import torch
from torch import nn

from scalar_retrieval.modeling_scalar.scores_scalar import paired_centroids

# Alignment (Eq. 6) ---------------------------------------------------------------------------------------------------

# Symmetric InfoNCE over the query-conditioned scores (SCALAR Eq. 6).


def info_nce(
    scores: torch.Tensor,
    offset: int = 0,
    temperature: float | torch.Tensor = 0.07,
    label_smoothing: float = 0.0,
    num_rows: float | None = None,
    same_clip: torch.Tensor | None = None,
) -> torch.Tensor:
    """
    Cross-entropy of each row's match against all columns.

    Args:
        scores (`torch.Tensor` of shape `(rows, columns)`): Cosines; the match of row i is column `offset + i`.
        offset (`int`): The column of this process's first match.
        temperature (`float` or a scalar `torch.Tensor`): Divides the scores.
        label_smoothing (`float`): The share of the target spread evenly over all columns.
        num_rows (`float`, *optional*): Divides the sum over rows; by default their number. With several processes,
            pass the mean number per process, so that the mean over processes is the mean over all rows.
        same_clip (`torch.BoolTensor` of shape `(rows, columns)`, *optional*): Columns of the row's clip apart from its
            match. They are left out, as if the row had fewer columns.

    Returns:
        `torch.Tensor`, a scalar: the mean over rows, log(columns) when all scores are equal.

    Example:

        >>> info_nce(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), temperature=0.5)  # each row's match scores highest
        tensor(0.1269)
        >>> info_nce(torch.zeros(2, 2))  # log(2)
        tensor(0.6931)
    """
    if num_rows is None:
        num_rows = len(scores)
    targets = torch.arange(len(scores), device=scores.device) + offset
    logits = scores / temperature
    if same_clip is None:
        total = nn.functional.cross_entropy(logits, targets, label_smoothing=label_smoothing, reduction="sum")
        return total / max(num_rows, 1)
    # The same over the other columns; cross_entropy would smooth over all.
    log_shares = logits.masked_fill(same_clip, float("-inf")).log_softmax(dim=1)
    match = log_shares.gather(1, targets[:, None]).squeeze(1)
    mean = log_shares.masked_fill(same_clip, 0).sum(1) / (~same_clip).sum(1)
    total = -((1 - label_smoothing) * match + label_smoothing * mean).sum()
    return total / max(num_rows, 1)


class AlignmentLoss(nn.Module):
    """
    Pull each text to its clip and push it away from the other clips of the batch, and vice versa: Eq. 6.

    Args:
        temperature (`float`): tau, positive; small values emphasise the hardest negatives. SCALAR keeps it fixed,
            because the scale of its cosines is meaningful.
        label_smoothing (`float`): Label smoothing, in [0, 1).
    """

    def __init__(self, temperature: float = 0.07, label_smoothing: float = 0.1):
        super().__init__()
        self.temperature = temperature
        self.label_smoothing = label_smoothing

    def forward(
        self,
        text_to_clip: torch.Tensor,
        clip_to_text: torch.Tensor,
        offset: int = 0,
        num_rows: float | None = None,
        temperature: torch.Tensor | None = None,
        same_clip: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Compute the loss of this process's rows.

        Args:
            text_to_clip (`torch.Tensor` of shape `(batch, clips)`): Rows of C: this process's texts against all clips.
            clip_to_text (`torch.Tensor` of shape `(batch, texts)`): Rows of C transposed: this process's clips, each
                aggregated separately for every text.
            offset (`int`): The index of this process's first row in the global batch.
            num_rows (`float`, *optional*), same_clip (`(batch, clips)`, *optional*): See [`info_nce`].
            temperature (`torch.Tensor`, *optional*): A learned temperature instead of the fixed one.

        Returns:
            `torch.Tensor`, a scalar, non-negative.
        """
        if temperature is None:
            temperature = self.temperature
        settings = (offset, temperature, self.label_smoothing, num_rows, same_clip)
        return (info_nce(text_to_clip, *settings) + info_nce(clip_to_text, *settings)) / 2


# Cross-arity consistency (Eq. 7) -------------------------------------------------------------------------------------

# Hiding one modality should not change a clip's centroid or score (SCALAR Eq. 7).


class CrossArityLoss(nn.Module):
    """
    Pull the reduced view M of each clip to its complete view K, for its own text: Eq. 7.

    Both centroids are pulled towards each other. The reduced score is pulled to the complete one, which is a fixed
    reference (stop-gradient), because otherwise both would move to a value that never occurs at test time. Zero where
    nothing is hidden.

    Args:
        query_temperature (`float`): tau_w of the weights, positive.
    """

    def __init__(self, query_temperature: float = 0.1):
        super().__init__()
        self.query_temperature = query_temperature

    def forward(
        self,
        text_embeds: torch.Tensor,
        modality_embeds: torch.Tensor,
        modality_mask: torch.Tensor,
        reduced_mask: torch.Tensor,
        num_rows: float | None = None,
    ) -> torch.Tensor:
        """
        Compute the mean over the batch of 1 - <mu_M, mu_K> + (s_M - sg[s_K])^2.

        Args:
            text_embeds (`torch.Tensor` of shape `(batch, dim)`): Unit norm; row i belongs to clip i.
            modality_embeds (`torch.Tensor` of shape `(batch, 3, dim)`): Unit norm; masked rows are ignored.
            modality_mask, reduced_mask (`torch.BoolTensor` of shape `(batch, 3)`): K and M, at least one True per row.
            num_rows (`float`, *optional*): Divides the sum over rows; by default their number. With several
                processes, the mean number per process.

        Returns:
            `torch.Tensor`, a scalar, non-negative.
        """
        if num_rows is None:
            num_rows = len(text_embeds)
        # mu_K and mu_M, and their cosines with the text.
        complete = paired_centroids(text_embeds, modality_embeds, modality_mask, self.query_temperature)
        reduced = paired_centroids(text_embeds, modality_embeds, reduced_mask, self.query_temperature)
        texts = text_embeds.to(complete.dtype)
        complete_scores = (texts * complete).sum(-1)  # (batch,)
        reduced_scores = (texts * reduced).sum(-1)
        direction = 1 - (reduced * complete).sum(-1)
        total = (direction + (reduced_scores - complete_scores.detach()).square()).sum()
        return total / num_rows


# Graded semantics (Eq. 8) --------------------------------------------------------------------------------------------

# Captions that mean nearly the same should score nearly the same (SCALAR Eq. 8).


class SemanticLoss(nn.Module):
    """
    Match each row of scores to the affinities of a frozen sentence encoder: Eq. 8, in two parts.

    Neighbourhoods: the softmax of the row is pulled to the softmax of its affinities, over the whole row; an unknown
    affinity counts as 0, the lowest weight. Calibration: a cosine with a known affinity S* is pulled to 2 S* - 1;
    unknown pairs are skipped.

    The scores are those of C~, in which each clip is aggregated once, for its own text, so that the targets act on the
    embeddings and not on the modality weights of the query.

    Args:
        temperature (`float`): tau of the contrastive scores, positive. It is fixed, because a learned one could absorb
            the scale that calibration supervises.
        semantic_temperature (`float`): tau* of the softmax over affinities, positive.
        calibration_weight (`float`): The weight of the second part; 0 skips it.
    """

    def __init__(self, temperature: float = 0.07, semantic_temperature: float = 0.5, calibration_weight: float = 1.0):
        super().__init__()
        self.temperature = temperature
        self.semantic_temperature = semantic_temperature
        self.calibration_weight = calibration_weight

    def forward(
        self,
        scores: torch.Tensor,
        affinities: torch.Tensor,
        num_rows: float | None = None,
        num_observed: float | torch.Tensor | None = None,
        temperature: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Compute the loss of this process's rows.

        Args:
            scores (`torch.Tensor` of shape `(batch, clips)`): Rows of C~, cosines.
            affinities (`torch.Tensor` of shape `(batch, clips)`): Rows of S*, in [0, 1]; 0 where unknown.
            num_rows (`float`, *optional*): Divides the sum over rows: the mean number of rows per process.
            num_observed (`float`, *optional*): The same for known pairs. Both default to the numbers of this process.
            temperature (`torch.Tensor`, *optional*): A learned temperature instead of the fixed one.

        Returns:
            `torch.Tensor`, a scalar, non-negative.
        """
        if temperature is None:
            temperature = self.temperature
        if num_rows is None:
            num_rows = len(scores)
        # Neighbourhoods: the divergence of the softmax of each row from that of its affinities.
        targets = (affinities / self.semantic_temperature).softmax(dim=1)
        predictions = (scores / temperature).log_softmax(dim=1)
        divergence = nn.functional.kl_div(predictions, targets.log(), log_target=True, reduction="sum")
        total = divergence / num_rows
        # Calibration: the squared error of each cosine whose affinity is known.
        if self.calibration_weight:
            observed = affinities > 0
            if num_observed is None:
                num_observed = observed.sum()
            errors = (scores - (2 * affinities - 1)).square() * observed
            total = total + self.calibration_weight * errors.sum() / max(num_observed, 1)
        return total


# Uniformity (Eq. 9) --------------------------------------------------------------------------------------------------

# Spread the aggregated clips of a batch over the sphere (SCALAR Eq. 9; Wang and Isola, 2020).


class UniformityLoss(nn.Module):
    """
    Push the centroids of a batch apart: Eq. 9, the logarithm of their mean Gaussian similarity.

    It is not a sum over rows, so it needs the centroids of all processes.

    Args:
        scale (`float`): The scale of the exponent, positive; with larger values, fewer and nearer pairs dominate.
    """

    def __init__(self, scale: float = 2.0):
        super().__init__()
        self.scale = scale

    def forward(self, centroids: torch.Tensor, clips: torch.Tensor | None = None) -> torch.Tensor:
        """
        Compute the term of a whole batch.

        Args:
            centroids (`torch.Tensor` of shape `(batch, dim)`): Unit norm, of all processes.
            clips (`torch.LongTensor` of shape `(batch,)`, *optional*): The clip of each centroid. Those of one clip,
                for different texts, are not pushed apart. By default all clips differ.

        Returns:
            `torch.Tensor`, a scalar in [-4 * scale, 0]: 0 if all are the same or there is only one clip.
        """
        if clips is None:
            clips = torch.arange(len(centroids), device=centroids.device)
        same_clip = clips[:, None] == clips
        num_pairs = (~same_clip).sum()
        if not num_pairs:
            return centroids.sum() * 0
        # For unit vectors |u - v|^2 = 2 - 2 <u, v>, but a centroid of cancelling modalities is shorter.
        squared_norms = centroids.square().sum(1)
        distances = (squared_norms[:, None] + squared_norms - 2 * centroids @ centroids.T).clamp(min=0)
        exponents = (-self.scale * distances).masked_fill(same_clip, float("-inf"))
        return exponents.flatten().logsumexp(0) - num_pairs.to(exponents.dtype).log()


# Data-anchor matching (L_DAM of Eq. 10) ------------------------------------------------------------------------------

# The cross-encoder distinguishes matched pairs from hard negatives (L_DAM of SCALAR Eq. 10).


class MatchingLoss(nn.Module):
    """Binary cross-entropy for matched pairs, texts with a negative clip, and negative texts with a clip."""

    def forward(
        self, match_logits: torch.Tensor, is_match: torch.Tensor, num_pairs: float | None = None
    ) -> torch.Tensor:
        """
        Compute the mean over pairs.

        Args:
            match_logits (`torch.Tensor` of shape `(pairs, 2)`): Class 1 is "this text describes this clip".
            is_match (`torch.BoolTensor` of shape `(pairs,)`): Whether the text describes the clip.
            num_pairs (`float`, *optional*): Divides the sum: the mean number of pairs per process, if processes hold
                different numbers; by default the number of pairs.

        Returns:
            `torch.Tensor`, a scalar: log(2) for equal logits, 0 without pairs.
        """
        if num_pairs is None:
            num_pairs = len(match_logits)
        logits = match_logits.to(torch.promote_types(match_logits.dtype, torch.float32))
        total = nn.functional.cross_entropy(logits, is_match.long(), reduction="sum")
        return total / max(num_pairs, 1)


# The backbone's objective --------------------------------------------------------------------------------------------

# Plain symmetric InfoNCE between the text and each modality separately.
#
# It is not in the paper, which starts from a pretrained backbone. Without aggregation, it favours no aggregator.


class PathwaysLoss(nn.Module):
    """
    Pull each text to every modality of its clip, against the same modality of the other clips.

    Args:
        temperature (`float`): Divides the cosines; positive.
    """

    def __init__(self, temperature: float = 0.07):
        super().__init__()
        self.temperature = temperature

    def forward(
        self,
        text_embeds: torch.Tensor,
        modality_embeds: torch.Tensor,
        modality_mask: torch.Tensor,
        all_text_embeds: torch.Tensor,
        all_modality_embeds: torch.Tensor,
        all_modality_mask: torch.Tensor,
        offset: int = 0,
        num_rows: float | None = None,
        same_clip: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Compute the mean over modalities of the loss among the clips that have it.

        Args:
            text_embeds, modality_embeds, modality_mask: This process's rows, `(batch, dim)`, `(batch, 3, dim)` and
                `(batch, 3)`.
            all_text_embeds, all_modality_embeds, all_modality_mask: The rows of all processes.
            offset (`int`): The index of this process's first row in the global batch.
            num_rows (`float`, *optional*): The mean number of rows per process; by default `batch`.
            same_clip (`(batch, rows of all processes)`, *optional*): See [`info_nce`].

        Returns:
            `torch.Tensor`, a scalar, non-negative.
        """
        if num_rows is None:
            num_rows = len(text_embeds)
        targets = torch.arange(len(text_embeds), device=text_embeds.device) + offset
        if same_clip is None:
            same_clip = torch.zeros(len(targets), len(all_text_embeds), dtype=torch.bool, device=targets.device)
        processes = len(all_text_embeds) / num_rows
        total = text_embeds.new_zeros(())
        terms = 0
        for modality in range(modality_mask.shape[1]):
            rows = modality_mask[:, modality].nonzero().flatten()
            absent = ~all_modality_mask[:, modality]
            if absent.all():
                continue
            # The mean over the rows of all processes, which may hold different numbers of them.
            num_present = (~absent).sum() / processes
            # InfoNCE in both directions, where clips without the modality and the clip itself are no candidates.
            left_out = absent | same_clip[rows]
            for queries, items in (
                (text_embeds[rows], all_modality_embeds[:, modality]),
                (modality_embeds[rows, modality], all_text_embeds),
            ):
                logits = (queries @ items.T / self.temperature).masked_fill(left_out, -1e30)
                total = total + nn.functional.cross_entropy(logits, targets[rows], reduction="sum") / num_present
                terms += 1
        return total / max(terms, 1)


# PMRL ----------------------------------------------------------------------------------------------------------------

# Each text and its clip's modalities share one leading direction (Liu et al., 2026; a baseline).
#
# It has two steps, because the second term compares the directions of all processes: [`leading_directions`] of this
# process's rows, which are gathered, then [`PMRLLoss`].


# Minimum gap between the first eigenvalue and the others. It bounds the gradient of the leading direction, which grows
# as one over the gap.
_MIN_GAP = 1e-3
# Singular values below this have no gradient, because that of a square root at zero is infinite.
_MIN_SINGULAR_VALUE = 1e-3


def leading_directions(
    text_embeds: torch.Tensor, modality_embeds: torch.Tensor, modality_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Decompose the matrix whose columns are a text and the modalities of its clip: singular values, leading direction.

    Both come from the eigenvectors v_j of its Gram matrix G, held fixed, by first-order perturbation: the eigenvalues
    are v_j' G v_j, and the leading eigenvector is v_1 + sum_j v_j (v_j' G v_1) / (lambda_1 - lambda_j), whose value is
    v_1 and whose gradient is that of the eigenvector. Unlike the gradient of an eigendecomposition, it exists even if
    eigenvalues other than the first coincide, as they do where modalities are absent.

    Args:
        text_embeds (`torch.Tensor` of shape `(batch, dim)`): Unit norm; row i belongs to clip i.
        modality_embeds (`torch.Tensor` of shape `(batch, 3, dim)`): Unit norm; the values of masked rows (even NaN)
            have no effect.
        modality_mask (`torch.BoolTensor` of shape `(batch, 3)`): The modalities of each clip.

    Returns:
        `tuple` of the singular values, `(batch, 4)`, descending, `-inf` after the 1 + present ones of a row, and the
        leading left singular vectors, `(batch, dim)`, unit norm, on the text's side of the origin. At least float32.
    """
    dtype = torch.promote_types(torch.promote_types(text_embeds.dtype, modality_embeds.dtype), torch.float32)
    with torch.autocast(device_type=text_embeds.device.type, enabled=False):
        # The vectors of each pair and their Gram matrix.
        present = torch.where(modality_mask[..., None], modality_embeds, modality_embeds.new_zeros(()))
        vectors = torch.cat([text_embeds[:, None], present], dim=1).to(dtype)  # (B, 4, D)
        # Each absent modality, a vector of zeros, adds a zero eigenvalue; these come last.
        gram = vectors @ vectors.mT  # (B, 4, 4)
        with torch.no_grad():
            eigenvalues, basis = torch.linalg.eigh(gram)
            eigenvalues = eigenvalues.flip(-1)  # descending
            basis = basis.flip(-1)
            weights = (eigenvalues[:, :1] - eigenvalues).clamp(min=_MIN_GAP).reciprocal()
            weights[:, 0] = 0
        # The leading direction by first-order perturbation, with the sign that points to the text.
        rotated = basis.mT @ gram @ basis  # (B, 4, 4), diagonal in value
        leading = basis[..., 0] + (basis @ (weights * rotated[..., 0])[..., None]).squeeze(-1)  # (B, 4)
        directions = nn.functional.normalize((leading[:, None] @ vectors).squeeze(1), dim=-1)  # (B, D)
        directions = torch.where((directions * vectors[:, 0]).sum(-1, keepdim=True) < 0, -directions, directions)
        # The singular values, roots of the eigenvalues; those of absent modalities do not count.
        squared = rotated.diagonal(dim1=1, dim2=2)
        num_vectors = 1 + modality_mask.sum(1, keepdim=True)
        beyond = torch.arange(squared.shape[1], device=squared.device) >= num_vectors
        singular_values = squared.clamp(min=_MIN_SINGULAR_VALUE**2).sqrt().masked_fill(beyond, float("-inf"))
    return singular_values, directions


class PMRLLoss(nn.Module):
    """
    Make the first singular value of each text and clip dominate, and keep the leading directions of pairs apart.

    The first term is the cross-entropy of the softmax of a row's singular values with the first as target: zero where
    all vectors are one, the logarithm of their number where they are orthogonal. The second is InfoNCE of the leading
    directions, each its own match.

    Args:
        singular_value_temperature (`float`): Divides the singular values; positive.
        direction_temperature (`float`): Divides the cosines of the directions; positive.
    """

    def __init__(self, singular_value_temperature: float = 0.05, direction_temperature: float = 0.1):
        super().__init__()
        self.singular_value_temperature = singular_value_temperature
        self.direction_temperature = direction_temperature

    def forward(
        self,
        singular_values: torch.Tensor,
        directions: torch.Tensor,
        all_directions: torch.Tensor,
        offset: int = 0,
        num_rows: float | None = None,
        same_clip: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Compute the sum of both terms of this process's rows.

        Args:
            singular_values (`torch.Tensor` of shape `(batch, 4)`), directions (`torch.Tensor` of shape
                `(batch, dim)`): The results of [`leading_directions`].
            all_directions (`torch.Tensor` of shape `(rows of all processes, dim)`): The directions of all processes.
            offset (`int`): The index of this process's first row in the global batch.
            num_rows (`float`, *optional*): Divides the sum over rows; by default their number. With several
                processes, the mean number per process.
            same_clip (`(batch, rows of all processes)`, *optional*): See [`info_nce`].

        Returns:
            `torch.Tensor`, a scalar, non-negative.
        """
        if num_rows is None:
            num_rows = len(directions)
        # The first singular value should dominate the others of its row.
        first = torch.zeros(len(directions), dtype=torch.long, device=directions.device)
        dominance = nn.functional.cross_entropy(
            singular_values / self.singular_value_temperature, first, reduction="sum"
        )
        # InfoNCE of the leading directions.
        with torch.autocast(device_type=directions.device.type, enabled=False):
            cosines = directions @ all_directions.T
        contrast = info_nce(cosines, offset, self.direction_temperature, num_rows=1, same_clip=same_clip)
        return (dominance + contrast) / num_rows


__all__ = [
    "AlignmentLoss",
    "CrossArityLoss",
    "MatchingLoss",
    "PMRLLoss",
    "PathwaysLoss",
    "SemanticLoss",
    "UniformityLoss",
    "info_nce",
    "leading_directions",
]
