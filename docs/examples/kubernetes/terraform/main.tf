# Terraform or OpenTofu: one release of the chart.
terraform {
  required_version = ">= 1.5"
  required_providers {
    # 3 writes `kubernetes` and `set` as attributes; 2 had blocks.
    helm = {
      source  = "hashicorp/helm"
      version = "~> 3.1"
    }
  }
}

provider "helm" {
  kubernetes = {
    config_path = "~/.kube/config"
  }
}

variable "role_arn" {
  description = "Role of AWS for the bucket; values-eks-irsa.yaml says what it trusts and may do."
  type        = string
}

resource "helm_release" "clicks" {
  name             = "clicks"
  namespace        = "lake"
  create_namespace = true
  repository       = "oci://registry.example.com/charts"
  chart            = "headrace"
  version          = "0.1.0"

  # No secret is a value: values stand in the state. Give Secrets of the namespace by `envFrom`.
  values = [
    file("${path.module}/values.yaml"),
    yamlencode({
      config         = file("${path.module}/pipelines.yaml")
      serviceAccount = { annotations = { "eks.amazonaws.com/role-arn" = var.role_arn } }
    }),
  ]

  # Ready means that each pipeline has committed. What does not, within 15 minutes, goes back to the release before.
  wait    = true
  atomic  = true
  timeout = 900
}
