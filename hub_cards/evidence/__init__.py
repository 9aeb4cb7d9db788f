"""What the files beside published weights say of them: how they were trained, and how they were evaluated."""
